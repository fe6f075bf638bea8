# The bindings' own stubs give each attribute and each owner its base class, where
# the bindings return the derived one: checked against them, right code is wrong.
from typing import Any

def __getattr__(name: str) -> Any: ...
