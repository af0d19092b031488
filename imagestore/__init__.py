"""imagestore"""
