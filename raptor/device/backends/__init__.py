"""Back ends of devices: crossbars in this process, ideal or analog, and drivers in another one."""
