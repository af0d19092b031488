"""The node side: what a kubelet, an edge node or another agent does with images, over any image service.

Parts: `image_manager` (EnsureImageExists), `image_gc` (image collection by (image, runtime handler)), `edged`
(KubeEdge's configuration), `embedded` and `docker` (image services; the CRI one is `imagestore.cri.client`),
`kubelet_config`.
``docs/kubernetes.md`` describes them all. Nothing is imported here.
"""
