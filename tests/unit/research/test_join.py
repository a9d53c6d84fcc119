"""The runs of a study of the book that were trained at two times."""

from join import joined_manifest


def test_data_that_were_not_prepared_again_keep_their_record():
    own = {
        "seal": "of its own",
        "cells": [{"cell": "a", "status": "not trained"}, {"cell": "b", "status": "completed"}],
        "data": [{"id": "old", "meta": None}, {"id": "new", "meta": {"splits": 2}}],
    }
    other = {"data": [{"id": "old", "meta": {"splits": 1}}, {"id": "new", "meta": None}]}
    taken = {"a": {"cell": "a", "status": "completed"}}
    assert joined_manifest(own, taken, other) == {
        "cells": [{"cell": "a", "status": "completed"}, {"cell": "b", "status": "completed"}],
        "data": [{"id": "old", "meta": {"splits": 1}}, {"id": "new", "meta": {"splits": 2}}],
    }
