require("no-such-package"); exports.handler = async () => 1;
