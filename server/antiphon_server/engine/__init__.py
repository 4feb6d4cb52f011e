"""What Antiphon adds to a stock vLLM engine. Loaded inside vLLM's processes, by its public extension points:

* ``connector`` (``kv_connector_module_path``): scheduler and worker side of the KV transfer;
* ``extension`` (``--worker-extension-cls``): lease calls on every worker rank;
* ``middleware`` (``--middleware``): ``/antiphon/*`` and the handle on streams, in the API server.

Nothing outside this package imports it: router, stack and tools share only ``antiphon_server.protocol``. The
doctor alone also asks ``support``, which knows nothing of vLLM, for the oldest version.
"""
