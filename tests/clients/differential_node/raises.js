throw Object.assign(new RangeError("at the import"), { code: "E_IMPORT" });
