"""``python -m propolis`` is ``propolis``."""

from propolis.cli import main


if __name__ == "__main__":
    main()
