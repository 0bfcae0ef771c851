"""From what a deployment says of itself to its bottleneck, and to fixes that were simulated before they are advised."""
