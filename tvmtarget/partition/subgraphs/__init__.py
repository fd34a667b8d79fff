"""Form subgraphs: group the operations of each site into functions, without cycles between them."""
