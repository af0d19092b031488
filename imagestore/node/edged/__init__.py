"""KubeEdge's edged: which image service an edge node uses, from the seed design to today's file."""
