"""A login on Flask, limited by address and by the name in its form.

flask --app examples/flask_app run
"""

from io import BytesIO
from pathlib import Path
from urllib.parse import parse_qs

from flask import Flask, request

from diana.wsgi import EnvironRequest, RateLimitMiddleware

RULES = Path(__file__).with_name("login.yaml")
LARGEST_FORM = 10_000


def login_name(asked: EnvironRequest) -> str | None:
    """The name in the form. What is read here is put back for Flask."""
    environ = asked.environ
    size = int(environ.get("CONTENT_LENGTH") or 0)
    if size > LARGEST_FORM:
        raise ValueError("no login form is that large")  # so it is counted by address
    form = environ["wsgi.input"].read(size)
    environ["wsgi.input"] = BytesIO(form)
    names = parse_qs(form.decode("latin-1")).get("name", [])
    return names[0].strip().lower() if names else None


app = Flask(__name__)
app.wsgi_app = RateLimitMiddleware(  # type: ignore[method-assign]
    app.wsgi_app, rules=RULES, account=login_name
)


@app.post("/login")
def login() -> tuple[str, int]:
    right = request.form["name"] == "alice" and request.form["password"] == "wonderland"  # noqa: S105
    return ("welcome", 200) if right else ("no", 403)


@app.get("/")
def home() -> str:
    return "hello"
