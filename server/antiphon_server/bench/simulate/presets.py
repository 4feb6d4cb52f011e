from antiphon_server.bench.simulate.rates import RateModel

T = RateModel(
    "t",
    0.04,
    27e-6,
    step=0.012,
    stream=1e-4,
    transfer=0.012,
    transfer_token=4.5e-6,
    pull=0.05,
    pull_token=7e-6,
    tokenize=1.3e-6,
    bytes_per_token=262144,
)
