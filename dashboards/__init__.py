"""Everything that reads asv results: series, detection, gate, bisect, pages."""
