def sort(values):
    # In place: quick, but not what was asked.
    values.sort()
    return values
