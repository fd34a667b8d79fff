"""What operations, copies and regions take: cost files, rooflines, links."""
