def sort(values):
    if len(values) < 2:
        return list(values)
    first, *rest = values
    smaller = [value for value in rest if value < first]
    others = [value for value in rest if value >= first]
    return sort(smaller) + [first] + sort(others)
