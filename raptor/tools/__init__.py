"""Tools beside the compiler: the command line, studies, quantisation, reports. The compiler imports none of them."""
