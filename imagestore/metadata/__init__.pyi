from .api import MetadataStore as MetadataStore
from .postgres import PostgresMetadataStore as PostgresMetadataStore
from .records import ImageRecord as ImageRecord
from .records import ListedImage as ListedImage
