const a = require("./circularA"); exports.name = `b beside ${Object.keys(a).length}`;
