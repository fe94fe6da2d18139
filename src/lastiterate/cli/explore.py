"""``lastiterate explore``: the accountant behind sliders, on this machine alone."""

from __future__ import annotations

from typing import Annotated

import typer

from lastiterate import interrupts
from lastiterate.cli.app import app, console, reports_errors


@app.command("explore")
@reports_errors
def explore_command(
    port: Annotated[int, typer.Option("--port", help="the port; 0 takes a free one")] = 0,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="open the page in a browser")
    ] = True,
) -> None:
    """Open a local page to explore epsilon with sliders.

    Ctrl-C ends it.
    """
    import webbrowser

    from lastiterate.report.explore import serve, warm

    server = serve(port)
    warm()
    address = f"http://127.0.0.1:{server.server_address[1]}/"
    console.print(f"{address} (this machine only; Ctrl-C ends it)", highlight=False, markup=False)
    if browser:
        webbrowser.open(address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        interrupts.mark_answered()
        console.print("ended", highlight=False)
    finally:
        server.server_close()
