throw "a string at the import";
