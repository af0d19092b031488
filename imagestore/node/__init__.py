"""The node side: what a kubelet, an edge node or another agent does with images, over any image service.

Parts: `ensure` (EnsureImageExists), `gc` (image collection by (image, runtime handler)), `edged` (KubeEdge's
configuration), `embedded` and `docker` (image services; the CRI one is `imagestore.cri.client`), `kubelet_config`.
``docs/kubernetes.md`` has the whole of it. Nothing is loaded before it is asked for.
"""
