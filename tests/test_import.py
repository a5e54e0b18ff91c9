"""What importing the library brings with it."""

import subprocess
import sys

#: Used by some commands only, and slow to import.
_ON_USE = ("sklearn", "scipy", "plotly", "jinja2", "rich", "typer", "matplotlib", "torch._dynamo", "symbayes.cli")
_CODE = "import sys, symbayes; print([name for name in sys.argv[1:] if name in sys.modules])"


def test_importing_the_library_imports_only_what_every_use_needs():
    found = subprocess.run([sys.executable, "-c", _CODE, *_ON_USE], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
