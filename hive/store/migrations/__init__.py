"""The two migration sets: ``hive.store.schema`` states their form, ``hive.store.migration`` runs them."""
