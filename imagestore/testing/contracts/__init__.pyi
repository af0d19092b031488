from .content import ContentContract as ContentContract
from .metadata import MetadataContract as MetadataContract
