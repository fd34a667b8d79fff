"""Which operations of a site run in one call: subgraphs whose graph has no circle, by several ways, the best kept."""
