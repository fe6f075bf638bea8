"""What `recompile` is made of: the module, the compilers' environment, their process, their words."""
