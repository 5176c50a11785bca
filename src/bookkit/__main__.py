from bookkit.build import main

main()
