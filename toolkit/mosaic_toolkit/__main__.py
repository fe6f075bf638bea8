"""``python -m mosaic_toolkit``: the ``mosaic-dump`` command from a source tree."""

from .cli import main

if __name__ == "__main__":
    main()
