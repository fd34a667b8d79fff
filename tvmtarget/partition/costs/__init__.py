"""What operations, copies and subgraphs take: cost files, rooflines, links."""
