"""What commands share: the form of their arguments, JSON on the standard output, and errors in one line with an exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from fedlens.recipe_text import RecipeError
from fedlens.tracking.checkpoints import BadCheckpoint
from fedlens.tracking.run_folder import RunFolderError

Overrides = Annotated[list[str] | None, typer.Argument(help="settings to change, as `dotted.key=value`", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON instead of text")]
RUN_FAILED, BAD_INPUT, BAD_FOLDER, INTERRUPTED = 1, 2, 3, 130


def print_json(content: Any) -> None:
    plain = "utf" not in (sys.stdout.encoding or "").lower()
    print(json.dumps(content, indent=1, ensure_ascii=plain, allow_nan=False))


@contextmanager
def errors() -> Iterator[None]:
    """Turn what a user can mend into one line and an exit code; anything else is a bug and keeps its trace."""
    try:
        yield
    except RunFolderError as error:
        fail(error, BAD_FOLDER)
    except BadCheckpoint as error:
        fail(error, BAD_FOLDER)
    except (RecipeError, FileNotFoundError, ImportError) as error:
        fail(error, BAD_INPUT)
    except OSError as error:
        fail(error, RUN_FAILED)
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def fail(error: Exception, code: int) -> None:
    print(f"fedlens: {error}", file=sys.stderr)
    raise typer.Exit(code)
