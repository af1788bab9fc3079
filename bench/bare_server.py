"""The floor of the server's figures: a route on the same stack that stores nothing, and answers like a write.

The stack is Starlette on uvicorn with httptools and uvloop, and connections that are bounded like the server's:
that they are is no matter of a route. With `plain` as second word, they are uvicorn's own.

Usage: python bench/bare_server.py PORT [plain]
"""

import sys

import anyio
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount

from agentcoordd.server.answers import Answer, Receive, Scope, Send, deliver
from agentcoordd.server.connections import patient

ANSWER = Answer(200, b'{"path":"claims/acme/widgets/319-000000.json","version":1000,"updated_by":"bench"}')


async def route(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body, as every route that writes has to, and answer."""
    while (await receive()).get("more_body"):
        pass
    await deliver(ANSWER, send)


def main() -> None:
    """Serve until killed."""
    app = Starlette(routes=[Mount("/", app=route)])  # pyright: ignore[reportArgumentType]
    config = uvicorn.Config(
        app,
        port=int(sys.argv[1]),
        http="httptools" if "plain" in sys.argv[2:] else patient(20_000),
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        timeout_keep_alive=75,
    )
    anyio.run(uvicorn.Server(config).serve, backend_options={"use_uvloop": True})


if __name__ == "__main__":
    main()
