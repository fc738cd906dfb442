"""Command `python -m validator.bounds MODEL.onnx ARCH.json CERTIFICATE.json`, which checks a certificate.

Exit status: 0 the bound holds, 1 it is refused, 2 a file cannot be read. It runs without `raptor`, without a solver.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from validator.bounds.certificate import UnreadableFile, read_json, read_model, verify
from validator.bounds.chip_times import CertificateRefused


def main(arguments: Sequence[str] | None = None) -> int:
    """Checks a certificate and prints what it proves. Returns the exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    if len(given) != 3 or any(text.startswith("-") for text in given):
        print((__doc__ or "").strip(), file=sys.stdout if "--help" in given else sys.stderr)
        return 0 if "--help" in given else 2
    model, arch, certificate = map(Path, given)
    try:
        claim = read_json(certificate)
        bound = verify(read_model(model), read_json(arch), claim)
    except UnreadableFile as e:
        print(f"error: {e}", file=sys.stderr)
        return 2
    except CertificateRefused as e:
        print(f"refused: {certificate}: {e}", file=sys.stderr)
        return 1
    widths = "weights of {weight_bits}, inputs of {input_bits}, sums of {sum_bits} bits".format_map(claim)
    print(f"no mapping of these forms has an interval below {float(bound) / 1e6:.6f} ms ({widths})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
