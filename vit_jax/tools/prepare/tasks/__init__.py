"""Tasks that read parts and write shards, in processes here or on Apache Beam."""
