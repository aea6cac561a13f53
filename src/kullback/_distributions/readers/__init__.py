"""How each library's distribution classes are read into records: a table a library, by the name of the class."""
