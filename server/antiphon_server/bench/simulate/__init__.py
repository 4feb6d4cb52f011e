"""Discrete-event runs of the router's own decisions over fleets of modelled engines: a simulation, labelled
so wherever its figures are shown."""
