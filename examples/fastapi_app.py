"""A shop on FastAPI: a flash sale behind a rules file, and routes with limits of their own.

uvicorn --app-dir examples fastapi_app:app
"""

from pathlib import Path

from fastapi import APIRouter, Depends, FastAPI, Request

from diana.fastapi import (
    LimitedRoute,
    RateLimit,
    RateLimitExceeded,
    RateLimitMiddleware,
    exempt,
    rate_limit,
    rate_limit_exceeded_handler,
)

RULES = Path(__file__).with_name("flash_sale.yaml")


def api_key(request: Request) -> str | None:
    return request.headers.get("x-api-key")


app = FastAPI()
app.add_middleware(RateLimitMiddleware, rules=RULES)
app.add_exception_handler(RateLimitExceeded, rate_limit_exceeded_handler)

catalogue = APIRouter(
    prefix="/catalogue",
    route_class=LimitedRoute,
    dependencies=[Depends(RateLimit("5/second"))],
)


@app.post("/flash/order")
async def order(sku_id: int) -> dict[str, int]:
    return {"ordered": sku_id}


@catalogue.get("/search")
async def search(q: str = "") -> dict[str, str]:
    return {"found": q}


@catalogue.get("/export", dependencies=[Depends(RateLimit("2/minute", actor=api_key))])
async def export() -> dict[str, str]:
    """Limited twice, all or nothing: by the router, and by itself."""
    return {"exported": "everything"}


@catalogue.get("/healthz")
@exempt
async def healthz() -> str:
    return "ok"


@app.get("/report")
@rate_limit("3/minute", actor=["ip", "header X-Tenant"])
def report() -> dict[str, str]:
    return {"report": "fine"}


app.include_router(catalogue)
