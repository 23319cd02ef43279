"""The answer over HTTP: rules in front of an app. Import from `diana.asgi`, `diana.wsgi`, `diana.django` or `diana.fastapi`."""
