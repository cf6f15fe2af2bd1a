import unittest

from sorting import sort


class Sorting(unittest.TestCase):
    def test_nothing(self):
        self.assertEqual(sort([]), [])

    def test_numbers(self):
        self.assertEqual(sort([3, 1, 2]), [1, 2, 3])

    def test_equal_ones(self):
        self.assertEqual(sort([2, 1, 2, 1]), [1, 1, 2, 2])

    def test_what_was_given_stays_as_it_is(self):
        given = [2, 1]
        sort(given)
        self.assertEqual(given, [2, 1])
