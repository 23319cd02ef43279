"""A login on Django, in one file, limited by address and by the name in its form.

python examples/django_app.py runserver
"""

from pathlib import Path

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path


def login_name(request: HttpRequest) -> str | None:
    """The name in the form."""
    name: str = request.POST.get("name", "")
    return name.strip().lower() or None


settings.configure(
    DEBUG=False,
    ALLOWED_HOSTS=["127.0.0.1", "localhost", "testserver"],
    ROOT_URLCONF=__name__,
    SECRET_KEY="for this example only",  # noqa: S106
    MIDDLEWARE=["diana.django.RateLimitMiddleware"],
    DIANA_RULES=Path(__file__).with_name("login.yaml"),
    DIANA_ACCOUNT=login_name,
)


def login(request: HttpRequest) -> HttpResponse:
    form = request.POST
    right = form.get("name") == "alice" and form.get("password") == "wonderland"
    return HttpResponse("welcome") if right else HttpResponse("no", status=403)


def home(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"hello {request.META['REMOTE_ADDR']}")


urlpatterns = [path("", home), path("login", login)]
application = get_wsgi_application()
asgi = get_asgi_application()

if __name__ == "__main__":
    execute_from_command_line()
