"""`python -m jaxserve COMMAND ...` is `jaxserve COMMAND ...`."""

from jaxserve.cli import main

if __name__ == "__main__":
    main()
