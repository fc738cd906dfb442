"""Control flow that constants decide: branches and loops are inlined or unrolled."""
