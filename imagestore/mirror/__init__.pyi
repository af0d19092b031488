from .listener import Listener as Listener
from .listener import parse_address as parse_address
from .service import Mirror as Mirror
from .settings import MIRROR_PLUGIN as MIRROR_PLUGIN
from .settings import MirrorSettings as MirrorSettings
from .settings import Upstream as Upstream
