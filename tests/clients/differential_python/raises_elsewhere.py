"""A module whose function fails."""


def fail():
    # Its line has a tab and spaces around it.
    if True:
        	raise LookupError("elsewhere")  	
