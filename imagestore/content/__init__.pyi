from .api import ContentStore as ContentStore
from .api import Disk as Disk
from .api import IngestWriter as IngestWriter
from .bucket import Bucket as Bucket
from .bucket import BucketReader as BucketReader
from .bucket_store import BucketContentStore as BucketContentStore
from .shared_store import SharedContentStore as SharedContentStore
