"""From keys to a batch: fetching samples and collating them."""
