"""Tapes: the text form, the folder of bodies, replay, layouts, publishing."""
