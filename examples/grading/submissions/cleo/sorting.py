def sort(values):
    return sorted(set(values))
