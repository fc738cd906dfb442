"""The process of one call of a tool: `python -P -m raptor.tools.mcp.worker`, in the served folder.

It reads the call as JSON from standard input, and writes an object of JSON on each line: the stages, and at the end the
result or an error.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, ValidationError, validate_call

from raptor.common.errors import InternalError, RaptorError
from raptor.common.files.schema_types import format_errors
from raptor.tools.mcp.served_folder import ServedFolder
from raptor.tools.mcp.tools import TOOLS


def main() -> None:
    """Runs a call. The exit status is 0, also if the tool ends with an error."""
    call: dict[str, Any] = json.load(sys.stdin)
    with os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1) as answers:
        os.dup2(2, 1)  # whatever a library prints is no answer

        def answer(kind: str, value: Any) -> None:
            answers.write(json.dumps({kind: value}) + "\n")

        served = ServedFolder(Path(call["root"]), call["model_bytes"], call["kept_bytes"])
        _limit_files(served.kept_bytes)
        tool = validate_call(config=ConfigDict(validate_default=False))(TOOLS[call["tool"]])
        try:
            result = tool(served, partial(answer, "stage"), **call["arguments"])
        except ValidationError as e:
            answer("error", "\n".join(format_errors(e, 5)))
        except InternalError as e:
            answer("error", f"internal error, please report it: {e}")
        except RaptorError as e:
            answer("error", str(e))
        except MemoryError:
            answer("error", "out of memory")
        except Exception as e:  # whatever it is, it is our bug: the agent reads so, not a traceback
            answer("error", f"internal error, please report it: {type(e).__name__}: {e}")
        else:
            answer("result", result.model_dump(mode="json"))


def _limit_files(size_bytes: int) -> None:
    """Makes writing more than `size_bytes` into a file an `OSError`, where the system can."""
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))


if __name__ == "__main__":
    main()
