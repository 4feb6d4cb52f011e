"""Server side of Antiphon: engine plug-in, router, stack, simulator, demo and benchmark."""
