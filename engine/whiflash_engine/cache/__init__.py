"""What keeps the drafters' KV caches right and cheap: Lazy Catch-up, and the rules it follows.

1. Prompt rows are written to every drafter at once, chunk by chunk, K and V only.
2. Decode rows are written to the drafter that is about to draft; the others defer them.
3. When a KV block fills up, every drafter's deferred rows of it are written before the block can be shared:
   whatever prefix caching hands to a later turn is then valid for every drafter.
4. A request that ends or loses its cache takes its deferred rows with it; they lie in a block that was never
   full, so nobody else can see it.

Source: Lazy Catch-up and KV-only Prefill are WhiFlash's (arXiv 2606.07710); rule 3 is this project's.
"""

from whiflash_engine.cache.catch_up import Deferred, join_rows

__all__ = ["Deferred", "join_rows"]
